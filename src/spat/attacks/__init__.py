"""Attacks: one file each; a frozen value called with a model and images returns x_adv."""
