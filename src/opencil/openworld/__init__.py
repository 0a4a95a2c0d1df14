"""Learn classes, predict "unknown", learn again, and deploy: the open-world classifier."""
