"""Sharding: a mesh of devices, the parameters that are split over it, and the
communication of a step."""
