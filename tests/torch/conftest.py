"""The same sandboxes as the integration tests use."""

from tests.integration.conftest import make_sandbox, sandbox, slurm_env

__all__ = ["make_sandbox", "sandbox", "slurm_env"]
