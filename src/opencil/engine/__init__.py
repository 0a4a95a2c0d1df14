"""How work is executed: devices, seeds, schedules, the training loop, the forward pass."""
