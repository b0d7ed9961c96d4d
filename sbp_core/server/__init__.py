"""The part that both servers share: listener, dispatch of requests, backpressure, clock."""
