"""The command line, the Streamlit app and reports. In: a user's requests. Out: documents, tables, pictures and pages. Computes nothing."""
