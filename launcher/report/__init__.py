"""What a run was worth: measured numbers with their window, side by side with others, as text, JSON and pages."""
