"""What people see. In: documents. Out: words and tables, figures, and reports as folders of pages."""
