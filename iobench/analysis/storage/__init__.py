"""What storage did beside what the loader did: a tracer's calls on the profile's clock, and bytes.

A tracer's logs are joined to the processes of a profile (`joining`), their clocks set by the stages
that hold their calls (`clock_offsets`, `traced_stages`), and the calls placed (`placing`). What
processes count of themselves comes beside: the ledger of bytes (`byte_ledger`, `gaps`), the storage
inside stages (`stage_storage`) and single reads (`single_reads`, `read_costs`).
"""
