"""Every command here starts in an empty folder, on a wide screen."""

import pytest


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None) -> None:
    """Start so."""
