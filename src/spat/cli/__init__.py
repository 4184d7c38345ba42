"""The command line: one file a verb; parse, call one function, print, set the exit code."""
