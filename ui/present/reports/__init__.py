"""Report folders. In: documents, timelines and plans. Out: a page with tables and pictures, and the files that it shows."""
