"""The sans-IO conversation: connection and call state machines, events, deadlines."""
