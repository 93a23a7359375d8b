"""Short texts that ranks leave for each other in their store, so that nobody has to wait for them."""

from __future__ import annotations

from rankless.world.compat import default_store


class Notices:
    """One text per rank; a new one replaces the one before.

    Args:
        name: of this kind of notice.

    Raises:
        torch.distributed.DistStoreError: by every method, when the store is gone.
    """

    def __init__(self, name: str) -> None:
        self._name = f"rankless/{name}"

    def post(self, rank: int, text: str) -> None:
        """Leave a text."""
        default_store().set(f"{self._name}/{rank}", text)

    def read(self, rank: int) -> str | None:
        """The text of a rank, None where it has left none."""
        key = f"{self._name}/{rank}"
        store = default_store()
        return store.get(key).decode() if store.check([key]) else None
