"""What a range server does with time and space: retention, cleaning, freeing."""
