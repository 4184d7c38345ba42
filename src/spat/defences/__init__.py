"""Defences: one file each; an inner attack and a pure loss of logits."""
