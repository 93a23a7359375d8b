"""Damaged files and odd command lines: see ``make fuzz``."""
