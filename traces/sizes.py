"""Formats bytes for people."""


def gigabytes(count: int) -> str:
    """Bytes as GB, or as MB below 0.1 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
