"""Reports as one page, which holds all that it shows and runs no script but ours."""
