"""Packs the application into the wheel as `unroll_jax.train`; in an editable install it stays `train`, beside it."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Application(BuildHookInterface):
    """Adds train/ to a wheel that is not editable, of which it would be a copy that does not change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Is called before a build of a version, "standard" or "editable"."""
        if version == "standard":
            build_data["force_include"]["train"] = "unroll_jax/train"
