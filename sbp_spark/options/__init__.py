"""Options of the source and of the sink: strings in, frozen values out, all faults at once.

Read `declaring` first: an option is declared once, and parsed, checked and documented from that.
"""
