"""What both servers share: listener, dispatch of requests, backpressure, clock."""
