"""What commands and pages have in common. In: a request. Out: forecasts and searches, cached by what they depend on."""
