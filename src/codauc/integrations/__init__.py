"""How codauc fits the libraries people use: the scikit-learn estimator."""
