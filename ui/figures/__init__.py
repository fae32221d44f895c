"""Pictures. In: timelines and documents. Out: static pictures (PNG, SVG) and interactive charts."""
