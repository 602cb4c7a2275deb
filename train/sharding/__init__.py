"""Where arrays live: a mesh of devices, which parameters are shared out over it, and what a step communicates."""
