"""Reporting: the same few numbers as a text, as a live display and as one HTML page."""

from spat.reporting.live import Live
from spat.reporting.page import page
from spat.reporting.pictures import Picture
from spat.reporting.table import fraction, html_table, print_table, text_table

__all__ = ["Live", "Picture", "fraction", "html_table", "page", "print_table", "text_table"]
