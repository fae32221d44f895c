"""The Python door: `schedcast` is what people import, and the modules beside it do what its functions say."""
