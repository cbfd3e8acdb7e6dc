"""What unlearning would cost on this machine, before any of it is done, and the route that is then taken."""
