"""spat."""
