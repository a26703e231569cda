"""Certificates of one label and a radius: what `pprs certify` promises."""
