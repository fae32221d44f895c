"""Report folders. In: documents, timelines and plans. Out: a page with tables and pictures, beside the data it shows."""
