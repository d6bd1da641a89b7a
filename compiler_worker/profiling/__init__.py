"""What compiling changed: a model's ops before, its kernels after, and what each costs."""
