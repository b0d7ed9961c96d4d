"""APPEND: checked, numbered, and committed in groups."""
