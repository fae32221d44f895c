"""What commands and pages have in common. In: a request. Out: forecasts and searches, kept under what they depend on."""
