"""DYN801 to DYN805: code moved to the names and forms that torch.compile works best with. Off by
default."""
