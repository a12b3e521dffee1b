"""Old names: models that earlier versions logged name their loader by them."""
