"""Short runs in turns: does a change gain what was said?"""
