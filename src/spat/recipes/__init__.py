"""Recipes, one file for each table, figure or demonstration: functions that return Experiments."""
