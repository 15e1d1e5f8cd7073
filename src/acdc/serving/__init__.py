"""Running exported models: the engines that can, and how fast they are beside each other."""
