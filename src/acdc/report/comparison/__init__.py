"""Methods x sparsities x seeds on one page: what `acdc compare-methods` leaves, or any runs of several methods."""
