"""From runs to figures: rounds in turn, ratios, tables, a file and pictures."""
