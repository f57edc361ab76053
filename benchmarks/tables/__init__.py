"""Records of ``benchmarks/results`` as blocks of the pages, by what they are about."""
