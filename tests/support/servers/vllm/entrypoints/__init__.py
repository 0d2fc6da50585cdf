"""Part of a stand-in; see the README of this folder."""
