"""What people touch: the command line and the Streamlit app. Computes nothing."""
