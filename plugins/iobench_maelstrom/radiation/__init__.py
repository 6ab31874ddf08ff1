"""Application A3: emulating the radiation scheme, from NetCDF pairs and from TFRecords."""
