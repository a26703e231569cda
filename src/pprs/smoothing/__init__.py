"""The mathematics of a certificate: noise is added, votes are counted, shares are bounded, a radius follows."""
