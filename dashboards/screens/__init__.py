"""One file per page; Streamlit runs each as a script."""
