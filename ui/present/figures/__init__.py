"""Figures. In: timelines and documents. Out: static pictures (PNG, SVG; matplotlib) and interactive charts (plotly)."""
