"""Published experiments, one module for each paper. In: a machine preset. Out: tables of published and predicted figures."""
