"""Published experiments: a JSON file and a module for each paper. In: a machine preset. Out: tables of published and predicted figures."""
