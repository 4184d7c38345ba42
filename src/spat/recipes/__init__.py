"""Recipes: one file for each table, figure or demonstration, a function that returns Experiments."""
